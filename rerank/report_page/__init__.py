"""What was measured, as a page: tables, gains and losses query by query, and why."""
