"""What is stored, in the browser: a local web app that only reads. Pages are made here; scripts only help."""
