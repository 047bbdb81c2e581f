#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 402698bc39c07a6bff10b6e6e9ae8edad2500613 tests/test_lexer.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_lexer.py b/tests/test_lexer.py
index 54d9c80..18998c7 100644
--- a/tests/test_lexer.py
+++ b/tests/test_lexer.py
@@ -41,3 +41,32 @@ def test_numbers_with_exponents_and_bare_points(text):
 
 def test_a_name_that_begins_with_e_is_no_exponent():
     assert texts("2*e + e1") == ["2", "*", "e", "+", "e1"]
+
+
+def test_position_in_the_first_line():
+    with pytest.raises(SyntaxProblem) as error:
+        parse("1 + $")
+    assert (error.value.line, error.value.column) == (1, 5)
+
+
+def test_position_in_a_later_line():
+    with pytest.raises(SyntaxProblem) as error:
+        parse("a = 1;\nb = 2;\n  a $ b")
+    assert (error.value.line, error.value.column) == (3, 5)
+
+
+def test_position_at_the_start_of_a_line():
+    with pytest.raises(SyntaxProblem) as error:
+        parse("1 +\n* 2")
+    assert (error.value.line, error.value.column) == (2, 1)
+
+
+def test_position_below_empty_lines():
+    with pytest.raises(SyntaxProblem) as error:
+        parse("a = 1;\n\n\n$")
+    assert (error.value.line, error.value.column) == (4, 1)
+
+
+def test_position_at_the_end():
+    with pytest.raises(SyntaxProblem, match="line 2, column 2: expected a number, a name or '\\(', found the end"):
+        parse("1\n+")
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_evaluation.py tests/test_lexer.py tests/test_parser.py
: '>>>>> End Test Output'
git checkout 402698bc39c07a6bff10b6e6e9ae8edad2500613 tests/test_lexer.py
