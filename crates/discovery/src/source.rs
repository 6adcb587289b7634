//! The sources of addresses, each of its kind.

use crate::etcd::Etcd;
use crate::file::AddressFile;
use crate::kubernetes::Service;
use crate::listing::Listing;
use crate::names::DnsName;
use crate::reports::Reporter;

/// Something that says where workers are, for as long as the gateway runs.
#[derive(Debug)]
pub enum Source {
    File(AddressFile),
    Name(DnsName),
    Service(Service),
    Etcd(Etcd),
}

impl Source {
    /// What it says without being asked.
    pub fn known(&self) -> Option<Listing> {
        match self {
            Self::File(file) => Some(file.listing()),
            Self::Name(_) | Self::Service(_) | Self::Etcd(_) => None,
        }
    }

    /// As the log names it.
    pub fn described(&self) -> String {
        match self {
            Self::File(file) => file.described(),
            Self::Name(name) => format!("DNS name {}", name.0),
            Self::Service(service) => service.described(),
            Self::Etcd(etcd) => etcd.described(),
        }
    }

    /// Reports each change of what it lists, and says nothing while it cannot know. Never returns.
    pub async fn follow(self, reporter: Reporter) {
        match self {
            Self::File(file) => file.follow(&reporter).await,
            Self::Name(name) => name.follow(&reporter).await,
            Self::Service(service) => service.follow(&reporter).await,
            Self::Etcd(etcd) => etcd.follow(&reporter).await,
        }
    }
}
