//! The mlx5 adapter's wire formats: commands, contexts, WQEs, CQEs, EQEs.
