"""The evaluation page: verdict, intervals, queries, weights and training."""
