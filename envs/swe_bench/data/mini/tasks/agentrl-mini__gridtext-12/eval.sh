#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout eaa8396c6d99d720514c90d24c68ea0d28d27256 tests/test_table.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_table.py b/tests/test_table.py
index e0f6a0b..6252531 100644
--- a/tests/test_table.py
+++ b/tests/test_table.py
@@ -74,3 +74,27 @@ def test_sort_by():
     assert table.column("city") == ["Bergen", "Oslo"]
     table.sort_by("people", reverse=True)
     assert table.column("city") == ["Oslo", "Bergen"]
+
+
+def test_tables_share_no_rows():
+    first, second = Table(["a"]), Table(["a"])
+    first.add(1)
+    assert len(second) == 0
+
+
+def test_rows_of_the_caller_stay_as_they_are():
+    rows = [[1], [2]]
+    table = Table(["a"], rows)
+    table.add(3)
+    table.sort_by("a", reverse=True)
+    assert rows == [[1], [2]]
+
+
+def test_short_rows_are_filled_up():
+    assert Table(["a", "b"], [[1]]).rows == [[1, None]]
+
+
+def test_options_of_the_caller_stay_as_they_are():
+    align = {"a": "right"}
+    Table(["a"], align=align).align["a"] = "left"
+    assert align == {"a": "right"}
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_cells.py tests/test_csv.py tests/test_markdown.py tests/test_table.py
: '>>>>> End Test Output'
git checkout eaa8396c6d99d720514c90d24c68ea0d28d27256 tests/test_table.py
