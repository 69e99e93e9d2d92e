//! The processor's whole architectural state, saved and restored.

use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::cpu::{Attention, Cpu, Cr0, Cr4, Msrs, TableRegister};
use crate::cpuid::Model;
use crate::flags::Eflags;
use crate::fpu::Fpu;
use crate::histogram::SavedHistogram;
use crate::interrupt::Event;
use crate::segment::Segment;
use crate::sse::Sse;

const STATE_NAME: &str = "cpu";
const STATE_VERSION: u32 = 4;

/// The saved form of [`Cpu`].
#[derive(PartialEq, Serialize, Deserialize)]
struct State {
    gpr: Vec<u64>,
    ip: u64,
    eflags: u32,
    segments: Vec<Segment>,
    ldtr: Segment,
    tr: Segment,
    gdtr: TableRegister,
    idtr: TableRegister,
    /// CR0, CR2, CR3, CR4.
    cr: [u64; 4],
    pdptes: [u64; 4],
    dr: [u64; 8],
    msrs: Msrs,
    fpu: Fpu,
    sse: Sse,
    model: Model,
    interrupt_pin: bool,
    /// Versions before 3 never masked address line 20.
    #[serde(default = "high")]
    a20: bool,
    nmi_pending: bool,
    nmi_blocked: bool,
    debug_conditions: u32,
    halted: bool,
    event: Option<Event>,
    shadow: bool,
    ss_loaded: bool,
    /// Answers to the exits of an instruction that will start again.
    #[serde(default)]
    answers: Vec<u64>,
    instructions: u64,
    /// What the guest has measured by a guest tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    histogram: Option<SavedHistogram>,
}

fn high() -> bool {
    true
}

impl Cpu {
    /// Saves the whole architectural state.
    ///
    /// The state is exact between two runs of the engine, unless the last exit still waits for its answer.
    pub fn save(&self) -> SavedState {
        SavedState::new(STATE_NAME, STATE_VERSION, &self.state())
    }

    /// Returns whether the architectural states of both processors are equal, as [`Cpu::save`] would save them.
    pub fn has_state_of(&self, other: &Cpu) -> bool {
        self.state() == other.state()
    }

    fn state(&self) -> State {
        State {
            gpr: self.gpr[..16].to_vec(),
            ip: self.ip,
            eflags: self.eflags().bits(),
            segments: self.segments[..6].to_vec(),
            ldtr: self.ldtr,
            tr: self.tr,
            gdtr: self.gdtr,
            idtr: self.idtr,
            cr: [self.cr0.bits().into(), self.cr2, self.cr3, self.cr4.bits().into()],
            pdptes: self.pdptes,
            dr: self.dr,
            msrs: self.msrs,
            fpu: self.stored_fpu(),
            sse: self.sse.clone(),
            model: self.model,
            interrupt_pin: self.interrupt_pin,
            a20: self.a20(),
            nmi_pending: self.nmi_pending,
            nmi_blocked: self.nmi_blocked,
            debug_conditions: self.debug_conditions,
            halted: self.halted,
            event: self.event,
            shadow: self.attention.contains(Attention::SHADOW),
            ss_loaded: self.attention.contains(Attention::SS_LOADED),
            answers: self.answers.values.clone(),
            instructions: self.instructions,
            histogram: self.counting.save(),
        }
    }

    /// Restores a saved state. What the debugger outside has set stays, and engines learn that all they have
    /// derived from page tables may be wrong. On an error the processor is unchanged.
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(STATE_NAME, STATE_VERSION)?;
        if state.gpr.len() != 16 || state.segments.len() != 6 {
            return Err(saved.damaged("registers are missing"));
        }
        if !state.fpu.is_valid() {
            return Err(saved.damaged("the FPU's state cannot be"));
        }
        if !state.sse.is_valid() {
            return Err(saved.damaged("the state of SSE cannot be"));
        }
        let mut cpu = Cpu::new();
        cpu.gpr[..16].copy_from_slice(&state.gpr);
        cpu.ip = state.ip;
        for (register, segment) in (0..).zip(&state.segments) {
            let Segment { selector, base, limit, attributes, .. } = *segment;
            cpu.set_segment(register, Segment::new(selector, base, limit, attributes));
        }
        (cpu.ldtr, cpu.tr, cpu.gdtr, cpu.idtr) = (state.ldtr, state.tr, state.gdtr, state.idtr);
        let [cr0, cr2, cr3, cr4] = state.cr;
        (cpu.cr2, cpu.cr3) = (cr2, cr3);
        cpu.cr4 = Cr4::from_bits_truncate(cr4 as u32);
        cpu.pdptes = state.pdptes;
        cpu.dr = state.dr;
        cpu.msrs = state.msrs;
        cpu.fpu = state.fpu;
        cpu.transcendental = self.transcendental;
        cpu.vendor = self.vendor;
        cpu.guest_tools = self.guest_tools;
        cpu.counting = self.counting.clone();
        if !cpu.counting.restore(state.histogram) {
            return Err(saved.damaged("the histogram is of another version"));
        }
        cpu.clock = self.clock.take();
        cpu.sse = state.sse;
        cpu.model = state.model;
        cpu.interrupt_pin = state.interrupt_pin;
        cpu.set_a20(state.a20);
        cpu.nmi_pending = state.nmi_pending;
        cpu.nmi_blocked = state.nmi_blocked;
        cpu.update_nmi();
        cpu.halted = state.halted;
        cpu.event = state.event;
        cpu.attention.set(Attention::SHADOW, state.shadow);
        state.answers.into_iter().for_each(|answer| cpu.answer(answer));
        cpu.instructions = state.instructions;
        cpu.set_fetch_generation(self.fetch_generation + 1);
        cpu.set_eflags(Eflags::from_bits_truncate(state.eflags));
        cpu.set_cr0(Cr0::from_bits_truncate(cr0 as u32));
        cpu.breakpoints_changed();
        cpu.attention.set(Attention::SS_LOADED, state.ss_loaded);
        cpu.note_debug_conditions(state.debug_conditions);
        cpu.debugger = self.debugger.at_another_moment();
        cpu.system_calls = self.system_calls.clone();
        cpu.translation_changed();
        *self = cpu;
        Ok(())
    }
}
