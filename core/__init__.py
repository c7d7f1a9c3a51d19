"""Pure computation: frames and arrays in, frames and arrays out. No paths, no console, no clock."""
