"""The benchmark: gpupool beside a copy and its peers, on a GPU, on the CPU, and without either."""
