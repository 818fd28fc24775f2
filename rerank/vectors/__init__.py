"""How vectors are stored and read: fp16, passages, mapped files."""
