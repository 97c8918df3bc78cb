//! The load of the host's CPUs.

/// Runnable tasks of the whole machine, this thread included.
pub fn running_tasks() -> Option<usize> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_one_of_them() {
        assert!(running_tasks() >= Some(1));
    }
}
