"""One module per HTTP endpoint of the data plane."""
