//! The firmware: what the function knows, and what each command does to it.
//!
//! One [`Firmware`] lives from a driver's arrival (or a reset) to its departure, on the command
//! thread alone. A command goes through the same gate whatever it does: opcode, lengths, phase,
//! variant, reserved bits, fields that stand for something not announced; only then its family's
//! function runs, which checks values, numbers and states, changes the state, and answers. Nothing
//! changes when a command is refused or held.

mod boot;
mod capabilities;
mod counters;
mod cq;
mod eq;
mod flow;
mod page_set;
mod pages;
mod protection;
mod registers;
mod rq;
mod sq;
mod tir;
mod tis;
mod vport;

pub(crate) use capabilities::Limits;
pub(crate) use eq::Eq;

use crate::card::Module;
use crate::data::{DataError, DataPort};
use crate::events::Event;
use crate::faults::{PageLie, PageManners};
use crate::fields::{Understood, Unwanted};
use crate::objects::{Kind, ObjectId, Objects, Refused};
use crate::profile::Profile;
use crate::storm::Wave;
use crate::syndrome::{Phase, Reason, Refusal};
use pollux_prm::command::{InputHeader, Opcode};
use pollux_prm::layout::Field;
use pollux_prm::{Command, Layout};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, LazyLock};
use zerocopy::{FromBytes, IntoBytes};

/// What a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Nothing in particular.
    Nothing,
    /// A field of the input, by path.
    Field(&'static str),
    /// A number that the reason explains.
    Number(u16),
}

/// Why a command has no answer, or a bad one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is refused.
    Refuse(Reason, About),
    /// It waits until the firmware has more pages.
    Hold,
}

impl Stop {
    /// A refusal about a field of the input.
    pub(crate) const fn field(reason: Reason, path: &'static str) -> Self {
        Self::Refuse(reason, About::Field(path))
    }

    /// A value of a field that will not do.
    pub(crate) const fn value(path: &'static str) -> Self {
        Self::field(Reason::BadValue, path)
    }

    /// A refusal about a kind of object.
    pub(crate) const fn kind(reason: Reason, kind: Kind) -> Self {
        Self::Refuse(reason, About::Number(kind as u16))
    }

    /// A refusal about nothing in particular.
    pub(crate) const fn because(reason: Reason) -> Self {
        Self::Refuse(reason, About::Nothing)
    }
}

impl From<DataError> for Stop {
    /// The command side checked what it knows; what the data side refuses then is its failure.
    fn from(why: DataError) -> Self {
        tracing::warn!(%why, "the data side refused what the command side let pass");
        Self::because(Reason::Internal)
    }
}

/// Refuses with `stop` unless `good`.
pub(crate) fn ensure(good: bool, stop: Stop) -> Result<(), Stop> {
    if good { Ok(()) } else { Err(stop) }
}

/// A command's output: the fixed part, its status still zero, and the tail.
pub(crate) struct Reply<T> {
    fixed: T,
    tail: Vec<u8>,
}

impl<T> Reply<T> {
    pub(crate) fn with_tail(fixed: T, tail: Vec<u8>) -> Self {
        Self { fixed, tail }
    }
}

impl<T> From<T> for Reply<T> {
    fn from(fixed: T) -> Self {
        Self {
            fixed,
            tail: Vec::new(),
        }
    }
}

/// What a family's function returns.
pub(crate) type Answer<T> = Result<Reply<T>, Stop>;

/// The parts of a call that are not in the fixed input.
pub(crate) struct Call<'a> {
    /// Owner of what is made or touched.
    pub uid: u16,
    /// Variant.
    pub op_mod: u16,
    /// What follows the fixed input: whole elements.
    pub tail: &'a [u8],
    /// Bytes that the driver has room for.
    pub room: usize,
}

impl Call<'_> {
    /// The tail as big-endian 64-bit numbers.
    pub(crate) fn words64(&self) -> Vec<u64> {
        self.tail
            .chunks_exact(8)
            .map(|bytes| {
                bytes
                    .first_chunk()
                    .map_or(0, |word| u64::from_be_bytes(*word))
            })
            .collect()
    }

    /// The tail as big-endian 32-bit numbers.
    pub(crate) fn words32(&self) -> Vec<u32> {
        self.tail
            .chunks_exact(4)
            .map(|bytes| {
                bytes
                    .iter()
                    .fold(0, |value, byte| value << 8 | u32::from(*byte))
            })
            .collect()
    }
}

type Run = Box<dyn Fn(&mut Firmware, &[u8], &Call<'_>) -> Result<Vec<u8>, Stop> + Send + Sync>;

/// One command: its gate and its function.
pub(crate) struct Spec {
    opcode: Opcode,
    phases: &'static [Phase],
    variants: &'static [u16],
    fields: &'static [Field],
    input_len: usize,
    min_input: usize,
    input_element: usize,
    min_output: usize,
    understood: Understood,
    run: Run,
}

/// Phases in which objects can be made.
pub(crate) const RUNNING: &[Phase] = &[Phase::Running];
/// Phases between ENABLE_HCA and DISABLE_HCA.
pub(crate) const AWAKE: &[Phase] = &[Phase::Enabled, Phase::Running, Phase::TornDown];

/// A command that acts on the leaves at or below `used`; `opcode` and `op_mod` are understood.
pub(crate) fn command<C: Command + 'static>(
    phases: &'static [Phase],
    used: &[&str],
    run: fn(&mut Firmware, &C::Input, &Call<'_>) -> Answer<C::Output>,
) -> Spec {
    let paths: Vec<&str> = ["opcode", "op_mod"].iter().chain(used).copied().collect();
    Spec {
        opcode: C::OPCODE,
        phases,
        variants: &[0],
        fields: C::Input::FIELDS,
        input_len: C::Input::LEN,
        min_input: C::Input::LEN,
        input_element: C::INPUT_ELEMENT,
        min_output: C::Output::LEN,
        understood: Understood::new(C::Input::FIELDS, C::Input::LEN, &paths),
        run: Box::new(move |firmware, bytes, call| {
            // The gate has padded the input to its full length.
            let input =
                C::Input::read_from_bytes(bytes).map_err(|_| Stop::because(Reason::InputLength))?;
            let reply = run(firmware, &input, call)?;
            let mut out = reply.fixed.as_bytes().to_vec();
            out.extend_from_slice(&reply.tail);
            Ok(out)
        }),
    }
}

impl Spec {
    /// The variants that there are; an empty list leaves the check to the function.
    fn variants(mut self, variants: &'static [u16]) -> Self {
        self.variants = variants;
        self
    }

    /// Older drivers send a shorter input.
    fn min_input(mut self, len: usize) -> Self {
        self.min_input = len;
        self
    }

    fn refuse(&self, reason: Reason, about: About) -> Refusal {
        let detail = match about {
            About::Nothing => 0,
            About::Number(number) => number,
            About::Field(path) => self.understood.leaf(path),
        };
        Refusal::new(self.opcode.0, reason, detail)
    }
}

static COMMANDS: LazyLock<HashMap<u16, Spec>> = LazyLock::new(|| {
    [
        boot::commands(),
        capabilities::commands(),
        pages::commands(),
        eq::commands(),
        protection::commands(),
        cq::commands(),
        sq::commands(),
        rq::commands(),
        tis::commands(),
        tir::commands(),
        vport::commands(),
        counters::commands(),
        flow::commands(),
        registers::commands(),
    ]
    .into_iter()
    .flatten()
    .map(|spec| (spec.opcode.0, spec))
    .collect()
});

/// The input fields of a command that this device has.
pub(crate) fn input_fields(opcode: Opcode) -> Option<&'static [Field]> {
    COMMANDS.get(&opcode.0).map(|spec| spec.fields)
}

/// What a command of this device looks like, for tests that walk over all of them.
#[derive(Clone, Debug)]
pub struct CommandShape {
    /// Opcode.
    pub opcode: Opcode,
    /// Bytes of the fixed input.
    pub input_len: usize,
    /// Leaves of the input, each with whether the device acts on it.
    pub leaves: Vec<(crate::fields::Leaf, bool)>,
}

/// All commands of this device, by opcode.
pub fn command_shapes() -> Vec<CommandShape> {
    let mut shapes: Vec<CommandShape> = COMMANDS
        .values()
        .map(|spec| CommandShape {
            opcode: spec.opcode,
            input_len: spec.input_len,
            leaves: spec
                .understood
                .leaves()
                .iter()
                .map(|leaf| (leaf.clone(), spec.understood.uses(leaf)))
                .collect(),
        })
        .collect();
    shapes.sort_by_key(|shape| shape.opcode);
    shapes
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The whole output, as long as the driver has room.
    Done(Vec<u8>),
    /// Ask again when pages came.
    Hold,
}

/// Numbers by which a function is told apart, given when the emulator is made.
#[derive(Clone, Debug)]
pub(crate) struct Character {
    pub profile: Arc<Profile>,
    pub mac: [u8; 6],
    /// Pages asked for at boot.
    pub boot_pages: u32,
    /// Pages asked for before INIT_HCA.
    pub init_pages: u32,
    /// Pages of these that are for objects; more objects make the firmware ask for more.
    pub spare_pages: u32,
    pub vectors: usize,
    /// First and last plus one of the UAR pages.
    pub uars: std::ops::Range<u32>,
    /// First UAR page on which doorbells are plain memory.
    pub first_mapped_uar: u32,
    /// Speed of the port in Mbit/s.
    pub speed: u32,
    /// Page requests of its own accord.
    pub storm: Vec<Wave>,
}

/// All that the function knows of one driver.
pub(crate) struct Firmware {
    pub(crate) character: Character,
    pub(crate) data: DataPort,
    phase: Phase,
    issi: u16,
    capabilities: capabilities::Capabilities,
    pub(crate) pages: pages::Pages,
    /// How it deals with pages, and what it will say wrongly of them.
    pub(crate) manners: PageManners,
    pub(crate) lies: VecDeque<PageLie>,
    pub(crate) objects: Objects,
    pub(crate) eqs: BTreeMap<u8, Eq>,
    keys: BTreeMap<u32, protection::Mkey>,
    cqs: BTreeMap<u32, cq::Cq>,
    sqs: BTreeMap<u32, sq::Sq>,
    rqs: BTreeMap<u32, rq::Rq>,
    tises: BTreeMap<u32, tis::Tis>,
    tirs: BTreeMap<u32, tir::Tir>,
    rqts: BTreeMap<u32, tir::Rqt>,
    flow: flow::FlowTables,
    vport: vport::Vport,
    port: registers::Port,
    /// What is plugged into the port.
    pub(crate) module: Module,
    /// Events that wait for the command thread to write them.
    pub(crate) events: Vec<Event>,
    /// Commands refused so far.
    pub(crate) refused: u64,
}

impl Firmware {
    /// Firmware after power-on.
    pub(crate) fn new(character: Character, data: DataPort) -> Self {
        Self {
            phase: Phase::Disabled,
            issi: 0,
            capabilities: capabilities::Capabilities::new(&character.profile),
            pages: pages::Pages::default(),
            manners: PageManners::default(),
            lies: VecDeque::new(),
            objects: Objects::default(),
            eqs: BTreeMap::new(),
            keys: BTreeMap::new(),
            cqs: BTreeMap::new(),
            sqs: BTreeMap::new(),
            rqs: BTreeMap::new(),
            tises: BTreeMap::new(),
            tirs: BTreeMap::new(),
            rqts: BTreeMap::new(),
            flow: flow::FlowTables::default(),
            vport: vport::Vport::new(&character),
            port: registers::Port::new(&character),
            module: Module::default(),
            events: Vec::new(),
            refused: 0,
            character,
            data,
        }
    }

    /// Runs one command: `input` as the driver sent it, room for `room` bytes of output.
    pub(crate) fn execute(&mut self, input: &[u8], room: usize) -> Outcome {
        match self.gate(input, room) {
            Ok(mut out) => {
                out.resize(room, 0);
                Outcome::Done(out)
            }
            Err(None) => Outcome::Hold,
            Err(Some(refusal)) => {
                self.refused += 1;
                let opcode = Opcode(u16_at(input, 0));
                tracing::debug!(
                    %opcode,
                    status = %refusal.status,
                    why = crate::syndrome::explain(refusal.syndrome).unwrap_or_default(),
                    "command refused"
                );
                Outcome::Done(refused(refusal, room))
            }
        }
    }

    fn gate(&mut self, input: &[u8], room: usize) -> Result<Vec<u8>, Option<Refusal>> {
        let opcode = u16_at(input, 0);
        let unknown = Refusal::new(opcode, Reason::UnknownOpcode, 0);
        let spec = COMMANDS.get(&opcode).ok_or(Some(unknown))?;
        let stop = |reason| Some(spec.refuse(reason, About::Nothing));
        let (fixed, tail) = input.split_at(input.len().min(spec.input_len));
        let whole = match spec.input_element {
            0 => tail.is_empty(),
            size => tail.len() % size == 0,
        };
        if fixed.len() < spec.min_input || !whole {
            return Err(stop(Reason::InputLength));
        }
        if room < spec.min_output {
            return Err(stop(Reason::OutputLength));
        }
        if !spec.phases.contains(&self.phase) {
            return Err(Some(
                spec.refuse(Reason::WrongPhase, About::Number(self.phase as u16)),
            ));
        }
        if self.waits_for_pages(opcode) {
            return Err(None);
        }
        let mut bytes = fixed.to_vec();
        bytes.resize(spec.input_len, 0);
        let header = InputHeader::read_from_prefix(&bytes).map(|(header, _)| header);
        let header = header.map_err(|_| stop(Reason::InputLength))?;
        let op_mod = header.op_mod();
        if !spec.variants.is_empty() && !spec.variants.contains(&op_mod) {
            return Err(stop(Reason::UnknownVariant));
        }
        match spec.understood.unwanted(&bytes) {
            Some(Unwanted::Reserved { word }) => {
                return Err(Some(spec.refuse(Reason::ReservedBits, About::Number(word))));
            }
            Some(Unwanted::Field { leaf }) => {
                return Err(Some(spec.refuse(Reason::NotOffered, About::Number(leaf))));
            }
            None => {}
        }
        let call = Call {
            uid: header.uid(),
            op_mod,
            tail,
            room,
        };
        (spec.run)(self, &bytes, &call).map_err(|why| match why {
            Stop::Refuse(reason, about) => Some(spec.refuse(reason, about)),
            Stop::Hold => None,
        })
    }

    /// Whether INIT_HCA was done and TEARDOWN_HCA was not.
    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// The limits that are in force.
    pub(crate) fn limits(&self) -> Limits {
        self.capabilities.limits()
    }

    /// Whether `number` names an object of `kind` that `uid` may use; else a refusal about `path`.
    fn need(
        &self,
        kind: Kind,
        number: u32,
        uid: u16,
        path: &'static str,
    ) -> Result<ObjectId, Stop> {
        let id = (kind, u64::from(number));
        ensure(
            self.objects.has(id, uid),
            Stop::field(Reason::NoObject, path),
        )?;
        Ok(id)
    }

    /// A free number for a new object, with pages for it. The last check before a command acts.
    fn number(&mut self, kind: Kind, first: u64, count: u64) -> Result<u32, Stop> {
        let exhausted = Stop::kind(Reason::Exhausted, kind);
        let number = self
            .objects
            .free_number(kind, first, first + count)
            .ok_or(exhausted)?;
        self.charge(1)?;
        u32::try_from(number).map_err(|_| exhausted)
    }

    /// Removes an object, or says why it must stay.
    fn remove(&mut self, id: ObjectId, uid: u16, path: &'static str) -> Result<(), Stop> {
        self.objects
            .destroy(id, uid)
            .map_err(|why| keep(why, id.0, path))?;
        self.relieve();
        Ok(())
    }

    /// Whether an object can be removed; else why not.
    fn removable(&self, id: ObjectId, uid: u16, path: &'static str) -> Result<(), Stop> {
        self.objects
            .destroyable(id, uid)
            .map_err(|why| keep(why, id.0, path))
    }
}

fn keep(why: Refused, kind: Kind, path: &'static str) -> Stop {
    match why {
        Refused::Absent => Stop::field(Reason::NoObject, path),
        Refused::InUse => Stop::kind(Reason::InUse, kind),
    }
}

/// The output of a refused command.
pub(crate) fn refused(refusal: Refusal, room: usize) -> Vec<u8> {
    let mut out = vec![0; room];
    if let Some(status) = out.first_mut() {
        *status = refusal.status.0;
    }
    if let Some(syndrome) = out.get_mut(4..8) {
        syndrome.copy_from_slice(&refusal.syndrome.to_be_bytes());
    }
    out
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |pair| pair.iter().fold(0, |v, b| v << 8 | u16::from(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::leaves;

    #[test]
    fn every_used_path_exists() {
        // A misspelt path would make its field "not announced".
        for spec in COMMANDS.values() {
            let known = leaves(spec.fields);
            assert!(
                known.iter().any(|leaf| leaf.path == "opcode"),
                "{}",
                spec.opcode
            );
        }
    }
}
