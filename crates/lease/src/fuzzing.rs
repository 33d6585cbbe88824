//! What the fuzz targets call; no part of what users may rely on.

pub use crate::file::fuzzing::{head_name, record_file, record_json, samples};
