#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout eaa18ddf6dbc549d68be7cdff76df25a19cd5183 tests/test_markdown.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_markdown.py b/tests/test_markdown.py
index fcc630f..465bd30 100644
--- a/tests/test_markdown.py
+++ b/tests/test_markdown.py
@@ -16,3 +16,25 @@ def test_columns_are_at_least_three_wide():
 
 def test_no_rows():
     assert Table(["city"]).render("markdown").splitlines() == ["| city |", "| ---- |"]
+
+
+def test_pipes_are_escaped():
+    assert Table(["flag"], [["a|b"]]).render("markdown").splitlines()[2] == "| a\\|b |"
+
+
+def test_backslashes_are_escaped():
+    assert Table(["path"], [["C:\\x"]]).render("markdown").splitlines()[2] == "| C:\\\\x |"
+
+
+def test_line_ends_become_breaks():
+    assert Table(["text"], [["one\ntwo"]]).render("markdown").splitlines()[2:] == ["| one<br>two |"]
+
+
+def test_names_of_columns_are_escaped():
+    lines = Table(["a|b"], [[1]]).render("markdown").splitlines()
+    assert lines == ["| a\\|b |", "| ---- |", "| 1    |"]
+
+
+def test_alignment_is_in_the_rule():
+    table = Table(["left", "right", "center"], align={"right": "right", "center": "center"})
+    assert table.render("markdown").splitlines()[1] == "| ---- | ----: | :----: |"
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_cells.py tests/test_csv.py tests/test_markdown.py tests/test_table.py
: '>>>>> End Test Output'
git checkout eaa18ddf6dbc549d68be7cdff76df25a19cd5183 tests/test_markdown.py
