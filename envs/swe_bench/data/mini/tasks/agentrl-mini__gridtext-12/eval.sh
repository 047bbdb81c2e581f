#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 4edaa4760183b45d030a91aa67aef75e9bd9f42a tests/test_table.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_table.py b/tests/test_table.py
index e0f6a0b..62170a5 100644
--- a/tests/test_table.py
+++ b/tests/test_table.py
@@ -74,3 +74,34 @@ def test_sort_by():
     assert table.column("city") == ["Bergen", "Oslo"]
     table.sort_by("people", reverse=True)
     assert table.column("city") == ["Oslo", "Bergen"]
+
+
+def test_rows_of_the_caller_stay_as_they_are():
+    rows = [[1], [2]]
+    table = Table(["a"], rows)
+    table.add(3)
+    table.rows[0][0] = 5
+    assert rows == [[1], [2]]
+
+
+def test_short_rows_are_filled_up():
+    table = Table(["a", "b"], [[1]])
+    assert table.rows == [[1, None]]
+    assert table.column("b") == [None]
+
+
+def test_long_rows_are_refused():
+    with pytest.raises(ValueError, match="2 values for 1 columns"):
+        Table(["a"], [[1, 2]])
+
+
+def test_options_of_the_caller_stay_as_they_are():
+    align = {"a": "right"}
+    Table(["a"], align=align).align["a"] = "left"
+    assert align == {"a": "right"}
+
+
+def test_tables_share_no_options():
+    first = Table(["people"])
+    first.align["people"] = "right"
+    assert Table(["city"]).align == {}
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_cells.py tests/test_csv.py tests/test_markdown.py tests/test_table.py
: '>>>>> End Test Output'
git checkout 4edaa4760183b45d030a91aa67aef75e9bd9f42a tests/test_table.py
