//! The Pollux poll-mode driver for mlx5 adapters, as an application embeds it.
