"""Documents, queries and judgments, and their parts: text, categories, and fields for filters."""
