//! KVM on this machine, tried by a guest of one instruction.

use memlane_command::system::Machine;

use crate::memory::Region;

/// Whether KVM works here.
pub(crate) fn runs_kvm() -> bool {
    kvm_ioctls::Kvm::new().is_ok_and(|kvm| run_one_instruction(&kvm).is_ok())
}

/// The instruction `hlt` at the start of the page.
const HLT: u8 = 0xf4;

/// Makes a virtual machine of one page, and runs the instruction at its start.
pub(crate) fn run_one_instruction(kvm: &kvm_ioctls::Kvm) -> Result<(), String> {
    let text = |error: kvm_ioctls::Error| error.to_string();
    let machine = kvm.create_vm().map_err(text)?;
    let page = Region::anonymous(0x1000, 0x1000).map_err(|error| error.to_string())?;
    page.fill(HLT);
    let machine = Machine::new(machine, page).map_err(text)?;
    let mut cpu = machine.machine.create_vcpu(0).map_err(text)?;
    run(&mut cpu)
}

#[cfg(target_arch = "x86_64")]
pub(crate) const TRIED_BY_KVM: &str = "a guest of one instruction ran";

/// Runs `hlt` in real mode.
#[cfg(target_arch = "x86_64")]
fn run(cpu: &mut kvm_ioctls::VcpuFd) -> Result<(), String> {
    let text = |error: kvm_ioctls::Error| error.to_string();
    let mut special = cpu.get_sregs().map_err(text)?;
    (special.cs.base, special.cs.selector) = (0, 0);
    cpu.set_sregs(&special).map_err(text)?;
    let mut general = cpu.get_regs().map_err(text)?;
    (general.rip, general.rflags) = (0x1000, 2);
    cpu.set_regs(&general).map_err(text)?;
    match cpu.run().map_err(text)? {
        kvm_ioctls::VcpuExit::Hlt => Ok(()),
        other => Err(format!("it stopped with {other:?}")),
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const TRIED_BY_KVM: &str = "a virtual CPU was made";

/// A virtual CPU that was made is enough: `HLT` is an instruction of x86 alone.
#[cfg(not(target_arch = "x86_64"))]
fn run(_cpu: &mut kvm_ioctls::VcpuFd) -> Result<(), String> {
    Ok(())
}
