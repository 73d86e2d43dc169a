//! The parameter server and its client: the store behind framed sockets.
