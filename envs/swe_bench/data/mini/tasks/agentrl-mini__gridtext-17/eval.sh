#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 2144664f251615befe18f9cf6d824e31be1d4a0f tests/test_cells.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_cells.py b/tests/test_cells.py
index 6d60c4c..4f88ec1 100644
--- a/tests/test_cells.py
+++ b/tests/test_cells.py
@@ -44,3 +44,16 @@ def test_wrap_refuses_no_width():
 def test_lines_of_text_with_line_ends():
     assert cells.lines_of("a\nb") == ["a", "b"]
     assert cells.lines_of("") == [""]
+
+
+def test_width_of_wide_letters():
+    assert cells.width_of("東京") == 4
+    assert cells.width_of("ｆｕｌｌ") == 8
+
+
+def test_width_of_combining_marks():
+    assert cells.width_of("e\u0301a") == 2
+
+
+def test_wrap_wide_letters():
+    assert cells.wrap("東京都", 4) == ["東京", "都"]
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_cells.py tests/test_csv.py tests/test_markdown.py tests/test_table.py
: '>>>>> End Test Output'
git checkout 2144664f251615befe18f9cf6d824e31be1d4a0f tests/test_cells.py
