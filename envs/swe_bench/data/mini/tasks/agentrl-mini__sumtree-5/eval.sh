#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout bc36e9c295584cad582ac87088e120f1d7a7c252 tests/test_evaluation.py
git apply -v - <<'EOF_OF_TEST_PATCH'
diff --git a/tests/test_evaluation.py b/tests/test_evaluation.py
index 4709414..822a79d 100644
--- a/tests/test_evaluation.py
+++ b/tests/test_evaluation.py
@@ -64,3 +64,20 @@ def test_an_evaluator_remembers():
     evaluator = Evaluator({"x": 1})
     evaluator.run("y = x + 1")
     assert evaluator.run("y") == 2
+
+
+def test_names_of_the_caller_stay_as_they_are():
+    names = {"x": 1}
+    evaluate("x = 5; y = 2", names)
+    assert names == {"x": 1}
+
+
+def test_evaluators_share_no_names():
+    Evaluator().run("a = 1")
+    with pytest.raises(EvaluationProblem, match="unknown name a"):
+        Evaluator().run("a")
+
+
+def test_constants_stay_as_they_are():
+    assert evaluate("pi = 3; pi") == 3
+    assert evaluate("pi") == math.pi
EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider tests/test_evaluation.py tests/test_lexer.py tests/test_parser.py
: '>>>>> End Test Output'
git checkout bc36e9c295584cad582ac87088e120f1d7a7c252 tests/test_evaluation.py
