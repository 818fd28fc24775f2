"""Link, category and citation graphs."""
