//! A software ConnectX function: the mlx5 wire formats from the device's side.
