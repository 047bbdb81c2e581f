#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout f93833ab9dc5a416703d9965311eadffba75ef1e tests/test_evaluation.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_evaluation.py b/tests/test_evaluation.py
index d3950ed..1ad40cc 100644
--- a/tests/test_evaluation.py
+++ b/tests/test_evaluation.py
@@ -72,6 +72,30 @@ def test_values_of_powers():
     assert evaluate("2 ^ -1") == 0.5
 
 
+def test_if():
+    assert evaluate("if(1 < 2, 10, 20)") == 10
+    assert evaluate("if(0, 10, 20)") == 20
+
+
+def test_if_leaves_the_other_branch_alone():
+    assert evaluate("if(x == 0, 0, 1 / x)", {"x": 0}) == 0
+    assert evaluate("if(x == 0, 0, 1 / x)", {"x": 4}) == 0.25
+
+
+def test_if_assigns_nothing_in_the_other_branch():
+    assert evaluate("if(1, 2, missing)") == 2
+
+
+def test_if_within_if():
+    text = "if(n < 1, 0, if(n < 2, 1, sqrt(n - 2)))"
+    assert [evaluate(text, {"n": n}) for n in (0, 1, 6)] == [0, 1, 2]
+
+
+def test_if_takes_three():
+    with pytest.raises(EvaluationProblem, match="if takes"):
+        evaluate("if(1, 2)")
+
+
 def test_names_of_the_caller_stay_as_they_are():
     names = {"x": 1}
     evaluate("x = 5; y = 2", names)
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_evaluation.py tests/test_lexer.py tests/test_parser.py
: '>>>>> End Test Output'
git checkout f93833ab9dc5a416703d9965311eadffba75ef1e tests/test_evaluation.py
