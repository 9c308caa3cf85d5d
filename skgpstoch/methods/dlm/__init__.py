"""DLM: sparse GPs trained for the loss of their predictions."""
