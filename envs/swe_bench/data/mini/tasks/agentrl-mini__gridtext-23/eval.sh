#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout ef7ca64d0c71dca4d080b305589c4c4bf7d042b4 tests/test_table.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_table.py b/tests/test_table.py
index 62170a5..c8d2734 100644
--- a/tests/test_table.py
+++ b/tests/test_table.py
@@ -105,3 +105,21 @@ def test_tables_share_no_options():
     first = Table(["people"])
     first.align["people"] = "right"
     assert Table(["city"]).align == {}
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
git checkout ef7ca64d0c71dca4d080b305589c4c4bf7d042b4 tests/test_table.py
