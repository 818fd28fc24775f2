"""The HTML report on ``concept``: components of related documents, before and after training."""
