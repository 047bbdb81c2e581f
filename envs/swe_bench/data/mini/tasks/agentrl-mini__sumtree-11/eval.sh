#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 10476d60d1a498b5fa0769a01f96dde041c3f84b tests/test_evaluation.py tests/test_parser.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_evaluation.py b/tests/test_evaluation.py
index 822a79d..d3950ed 100644
--- a/tests/test_evaluation.py
+++ b/tests/test_evaluation.py
@@ -66,6 +66,12 @@ def test_an_evaluator_remembers():
     assert evaluator.run("y") == 2
 
 
+def test_values_of_powers():
+    assert evaluate("2 ^ 3 ^ 2") == 512
+    assert evaluate("-2 ^ 2") == -4
+    assert evaluate("2 ^ -1") == 0.5
+
+
 def test_names_of_the_caller_stay_as_they_are():
     names = {"x": 1}
     evaluate("x = 5; y = 2", names)
diff --git a/tests/test_parser.py b/tests/test_parser.py
index 2f60835..0c8a793 100644
--- a/tests/test_parser.py
+++ b/tests/test_parser.py
@@ -30,3 +30,17 @@ def test_no_expression(text):
 
 def test_a_semicolon_at_the_end_does_no_harm():
     assert parse("1;") == parse("1")
+
+
+def test_power_binds_to_the_right():
+    assert parse("2^3^2") == parse("2^(3^2)")
+    assert parse("2^3^2") != parse("(2^3)^2")
+
+
+def test_power_is_stronger_than_minus():
+    assert parse("-2^2") == parse("-(2^2)")
+
+
+@pytest.mark.parametrize("text", ["2 ^ 3 ^ 2", "(2 ^ 3) ^ 2", "-2 ^ 2", "(-2) ^ 2", "2 ^ -1", "(1 + 2) ^ 2"])
+def test_powers_are_printed_as_they_were_read(text):
+    assert str(parse(text)) == text
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_evaluation.py tests/test_lexer.py tests/test_parser.py
: '>>>>> End Test Output'
git checkout 10476d60d1a498b5fa0769a01f96dde041c3f84b tests/test_evaluation.py tests/test_parser.py
