"""Training: data, sampling, losses, and the loop with early stopping. Only this folder imports torch."""
