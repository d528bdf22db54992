//! The mlx5 poll-mode driver proper.
