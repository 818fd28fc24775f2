"""How ``concept`` is fitted: labelled pairs -> graph -> batches -> losses -> encoder and head."""
