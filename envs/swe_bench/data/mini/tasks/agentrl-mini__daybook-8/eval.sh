#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 831cceb64ef434c85046196c260d9d9af26a8de9 tests/test_calendar.py tests/test_span.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_calendar.py b/tests/test_calendar.py
index 9681354..1244215 100644
--- a/tests/test_calendar.py
+++ b/tests/test_calendar.py
@@ -71,3 +71,14 @@ def test_invite():
     booking = room().book(hours(9, 10), "talk", ["Ada"])
     booking.invite("Ada", "Grace")
     assert booking.people == ["Ada", "Grace"]
+
+
+def test_book_back_to_back():
+    calendar = room(hours(9, 10), hours(10, 11), hours(8, 9))
+    assert len(calendar) == 3
+
+
+def test_move_next_to_another_booking():
+    calendar = room(hours(9, 10), hours(12, 13))
+    calendar.move(calendar.at(datetime(2024, 3, 4, 9)), timedelta(hours=2))
+    assert calendar.at(datetime(2024, 3, 4, 11)).title == "meeting 0"
diff --git a/tests/test_span.py b/tests/test_span.py
index defb6ed..750b7c4 100644
--- a/tests/test_span.py
+++ b/tests/test_span.py
@@ -36,3 +36,12 @@ def test_intersection():
 
 def test_shift():
     assert Span(1, 4).shift(10) == Span(11, 14)
+
+
+def test_spans_that_touch_dont_overlap():
+    assert not Span(1, 3).overlaps(Span(3, 5))
+    assert not Span(3, 5).overlaps(Span(1, 3))
+
+
+def test_spans_that_touch_have_no_intersection():
+    assert Span(1, 3).intersection(Span(3, 5)) is None
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_calendar.py tests/test_notation.py tests/test_rules.py tests/test_span.py tests/test_spanset.py
: '>>>>> End Test Output'
git checkout 831cceb64ef434c85046196c260d9d9af26a8de9 tests/test_calendar.py tests/test_span.py
