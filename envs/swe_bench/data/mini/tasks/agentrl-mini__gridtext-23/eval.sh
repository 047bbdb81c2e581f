#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 2ef4cbfc1e31b177c3728aacb5a2e7796bdfce96 tests/test_table.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_table.py b/tests/test_table.py
index 6252531..42461a6 100644
--- a/tests/test_table.py
+++ b/tests/test_table.py
@@ -98,3 +98,21 @@ def test_options_of_the_caller_stay_as_they_are():
     align = {"a": "right"}
     Table(["a"], align=align).align["a"] = "left"
     assert align == {"a": "right"}
+
+
+def test_sort_by_with_empty_cells():
+    table = Table(["a", "n"], [["x", 3], ["y", None], ["z", 1]])
+    table.sort_by("n")
+    assert table.column("a") == ["z", "x", "y"]
+
+
+def test_sort_by_reverse_keeps_empty_cells_last():
+    table = Table(["a", "n"], [["v", None], ["w", 2], ["x", 3], ["y", None], ["z", 1]])
+    table.sort_by("n", reverse=True)
+    assert table.column("a") == ["x", "w", "z", "v", "y"]
+
+
+def test_sort_by_reverse_keeps_the_order_of_equal_rows():
+    table = Table(["a", "n"], [["x", 1], ["y", 2], ["z", 1]])
+    table.sort_by("n", reverse=True)
+    assert table.column("a") == ["y", "x", "z"]
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_cells.py tests/test_csv.py tests/test_markdown.py tests/test_table.py
: '>>>>> End Test Output'
git checkout 2ef4cbfc1e31b177c3728aacb5a2e7796bdfce96 tests/test_table.py
