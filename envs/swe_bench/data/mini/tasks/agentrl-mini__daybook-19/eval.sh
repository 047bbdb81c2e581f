#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout afcdcb746c41366ee5519022276bf64feeeb7fce tests/test_calendar.py tests/test_spanset.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_calendar.py b/tests/test_calendar.py
index 1244215..b595702 100644
--- a/tests/test_calendar.py
+++ b/tests/test_calendar.py
@@ -82,3 +82,13 @@ def test_move_next_to_another_booking():
     calendar = room(hours(9, 10), hours(12, 13))
     calendar.move(calendar.at(datetime(2024, 3, 4, 9)), timedelta(hours=2))
     assert calendar.at(datetime(2024, 3, 4, 11)).title == "meeting 0"
+
+
+def test_free_around_several_bookings():
+    calendar = room(hours(9, 10), hours(12, 13), hours(15, 16))
+    assert calendar.free(hours(8, 18)) == [hours(8, 9), hours(10, 12), hours(13, 15), hours(16, 18)]
+
+
+def test_common_free():
+    rooms = [room(hours(8, 10)), room(hours(11, 12)), room(hours(16, 18))]
+    assert common_free(rooms, hours(8, 18)) == [hours(10, 11), hours(12, 16)]
diff --git a/tests/test_spanset.py b/tests/test_spanset.py
index 53b5738..253a4f1 100644
--- a/tests/test_spanset.py
+++ b/tests/test_spanset.py
@@ -29,3 +29,17 @@ def test_difference_with_one_hole():
 
 def test_difference_that_leaves_nothing():
     assert not SpanSet([Span(1, 3)]) - SpanSet([Span(0, 4)])
+
+
+def test_difference_with_several_holes():
+    rest = SpanSet([Span(0, 10)]) - SpanSet([Span(1, 2), Span(4, 6), Span(8, 9)])
+    assert list(rest) == [Span(0, 1), Span(2, 4), Span(6, 8), Span(9, 10)]
+
+
+def test_difference_with_a_hole_over_the_start():
+    assert list(SpanSet([Span(2, 10)]) - SpanSet([Span(0, 3), Span(5, 6)])) == [Span(3, 5), Span(6, 10)]
+
+
+def test_difference_of_several_spans():
+    rest = SpanSet([Span(0, 4), Span(6, 10)]) - SpanSet([Span(1, 2), Span(3, 7), Span(8, 9)])
+    assert list(rest) == [Span(0, 1), Span(2, 3), Span(7, 8), Span(9, 10)]
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_calendar.py tests/test_notation.py tests/test_rules.py tests/test_span.py tests/test_spanset.py
: '>>>>> End Test Output'
git checkout afcdcb746c41366ee5519022276bf64feeeb7fce tests/test_calendar.py tests/test_spanset.py
