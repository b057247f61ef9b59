//! What is generated from `proto/nanomc/master/v1/master.proto`, which is public, and from the part of etcd's API in
//! `crates/nanomc-master/proto`. It is committed, so that building needs neither protoc nor a generator; `tests/proto.rs` fails
//! when it is not what the files say, and `make bless` writes it anew.

/// The service of a master, for servers and clients.
#[allow(
    missing_docs,
    clippy::allow_attributes_without_reason,
    clippy::doc_lazy_continuation,
    clippy::doc_markdown,
    clippy::large_enum_variant,
    reason = "generated"
)]
pub mod v1 {
    include!("nanomc.master.v1.rs");
}

/// What a master says to etcd.
#[allow(missing_docs, clippy::allow_attributes_without_reason, clippy::enum_variant_names, reason = "generated")]
pub mod etcd {
    include!("etcdserverpb.rs");
}
