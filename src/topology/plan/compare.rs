//! Whether one GPU can take the place of another, and if not, in what it is different.

use super::{
    refusal::{Difference, Need},
    view::GpuView,
};
use crate::topology::{Checks, Property, Variable};

/// What must be the same, whatever anybody says.
const SAME: [Property; 18] = [
    Property::VendorId,
    Property::DeviceId,
    Property::SimdCount,
    Property::MemBanksCount,
    Property::IoLinksCount,
    Property::MaxWavesPerSimd,
    Property::LdsSizeInKb,
    Property::WaveFrontSize,
    Property::ArrayCount,
    Property::SimdArraysPerEngine,
    Property::CuPerSimdArray,
    Property::SimdPerCu,
    Property::MaxSlotsScratchCu,
    Property::NumSdmaEngines,
    Property::NumSdmaXgmiEngines,
    Property::NumSdmaQueuesPerEngine,
    Property::NumCpQueues,
    Property::VramPublic,
];

/// What is compared unless its variable says otherwise.
const CHECKED: [(Property, Need, Variable); 6] = [
    (Property::Capability, Need::Same, Variable::Capability),
    (Property::VramSize, Need::AtLeast, Variable::VramSize),
    (Property::NumGws, Need::AtLeast, Variable::NumGws),
    (Property::CachesCount, Need::AtLeast, Variable::CachesCount),
    (Property::FwVersion, Need::AtLeast, Variable::FwVer),
    (Property::SdmaFwVersion, Need::AtLeast, Variable::SdmaFwVer),
];

/// Why a GPU cannot take the place of another: nothing, if it can.
pub(super) fn compare(source: &GpuView, destination: &GpuView, checks: Checks) -> Vec<Difference> {
    let same = SAME.map(|property| (property, Need::Same, None));
    let checked = CHECKED.map(|(property, need, variable)| (property, need, Some(variable)));
    let properties = same.into_iter().chain(checked).map(|(property, need, variable)| Difference {
        property: property.name(),
        need,
        source: source.node.get(property),
        destination: destination.node.get(property),
        variable,
    });
    let links = Difference {
        property: "links to known nodes",
        need: Need::AtLeast,
        source: source.valid_links as u64,
        destination: destination.valid_links as u64,
        variable: None,
    };
    let replaced = source
        .cpu_links
        .iter()
        .filter(|link| destination.cpu_links.iter().any(|candidate| link.may_become(candidate)));
    let cpu_links = Difference {
        property: "links to CPUs that are as good",
        need: Need::AtLeast,
        source: source.cpu_links.len() as u64,
        destination: replaced.count() as u64,
        variable: None,
    };
    properties
        .chain([links, cpu_links])
        .filter(|found| found.variable.is_none_or(|variable| checks.is_on(variable)))
        .filter(|found| !found.need.is_met(found.source, found.destination))
        .collect()
}
