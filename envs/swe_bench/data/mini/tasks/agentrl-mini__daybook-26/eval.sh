#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 9fd95ca6acc395569b12312c4e61ad51cfb79bc5 tests/test_calendar.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_calendar.py b/tests/test_calendar.py
index b595702..c049b64 100644
--- a/tests/test_calendar.py
+++ b/tests/test_calendar.py
@@ -92,3 +92,22 @@ def test_free_around_several_bookings():
 def test_common_free():
     rooms = [room(hours(8, 10)), room(hours(11, 12)), room(hours(16, 18))]
     assert common_free(rooms, hours(8, 18)) == [hours(10, 11), hours(12, 16)]
+
+
+def test_free_includes_gaps_of_exactly_that_length():
+    calendar = room(hours(9, 10), hours(11, 12), hours(14, 18))
+    assert calendar.free(hours(8, 18), at_least=timedelta(hours=1)) == [hours(8, 9), hours(10, 11), hours(12, 14)]
+
+
+def test_first_free_takes_a_gap_that_fits_exactly():
+    calendar = room(hours(8, 9), hours(10, 18))
+    assert calendar.first_free(hours(8, 18), timedelta(hours=1)) == hours(9, 10)
+
+
+def test_common_free_takes_a_gap_that_fits_exactly():
+    rooms = [room(hours(8, 10)), room(hours(11, 18))]
+    assert common_free(rooms, hours(8, 18), at_least=timedelta(hours=1)) == [hours(10, 11)]
+
+
+def test_first_free_of_what_is_full():
+    assert room(hours(8, 17)).first_free(hours(8, 18), timedelta(hours=2)) is None
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_calendar.py tests/test_notation.py tests/test_rules.py tests/test_span.py tests/test_spanset.py
: '>>>>> End Test Output'
git checkout 9fd95ca6acc395569b12312c4e61ad51cfb79bc5 tests/test_calendar.py
