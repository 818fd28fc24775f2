"""How vectors are stored and read: fp16, fragments, mapped files."""
