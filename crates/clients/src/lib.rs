//! Who sends a request, and how much it may have open and use. Owns the counts of connections, addresses and API
//! keys, the quotas of keys, and the places, memory and threads that all share. Knows nothing of HTTP's routes and
//! of what requests contain; its errors are in the API's words.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod admission;
pub mod api_key;
pub mod client;
pub mod quota;
