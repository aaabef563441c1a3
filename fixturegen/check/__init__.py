"""Will this checkpoint run on that kernel? The catalogue of kernel bounds and its checker."""
