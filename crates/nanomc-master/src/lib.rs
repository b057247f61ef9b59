//! The master of a nanomc cluster as a program: `nanomc-master`. The directory itself, framed connections and the thread that
//! serves them are the library's (`nanomc::cluster`); here is what is around it: options, gRPC, HTTP for people and Prometheus,
//! and what must outlive a master, in a file or in etcd.

pub mod auth;
pub mod directory;
pub mod door;
pub mod grpc;
pub mod http;
pub mod keep;
pub mod meter;
pub mod options;
pub mod print;
pub mod proto;
pub mod run;
pub mod serve;
mod sys;
