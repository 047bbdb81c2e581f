#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout cbb80984bdb145eb58041d805acc3c504ea6d1f8 tests/test_rules.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_rules.py b/tests/test_rules.py
index 430105f..62695fb 100644
--- a/tests/test_rules.py
+++ b/tests/test_rules.py
@@ -44,3 +44,18 @@ def test_skipping():
 def test_every_must_be_positive():
     with pytest.raises(ValueError):
         rules.take(rules.daily(date(2024, 1, 1), every=0), 1)
+
+
+def test_monthly_on_the_31st():
+    found = rules.take(rules.monthly(date(2024, 1, 31)), 4)
+    assert found == [date(2024, 1, 31), date(2024, 2, 29), date(2024, 3, 31), date(2024, 4, 30)]
+
+
+def test_monthly_on_the_30th_in_february():
+    found = rules.take(rules.monthly(date(2022, 12, 30)), 4)
+    assert found == [date(2022, 12, 30), date(2023, 1, 30), date(2023, 2, 28), date(2023, 3, 30)]
+
+
+def test_yearly_on_the_leap_day():
+    found = rules.take(rules.monthly(date(2024, 2, 29), every=12), 2)
+    assert found == [date(2024, 2, 29), date(2025, 2, 28)]
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_calendar.py tests/test_notation.py tests/test_rules.py tests/test_span.py tests/test_spanset.py
: '>>>>> End Test Output'
git checkout cbb80984bdb145eb58041d805acc3c504ea6d1f8 tests/test_rules.py
