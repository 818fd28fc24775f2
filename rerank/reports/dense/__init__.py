"""What ``dense`` has learned, as one HTML page: the figures of Raman et al. 2021, before and after."""
