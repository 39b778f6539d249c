# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh; vm.sh says what the words mean.
# c.sh: the packages as a service on a Debian root with systemd as PID 1
. tests/vm/root.sh
must "a Debian root" root_image "$here/root.ext4"
must "a guest that boots it" guest_boot g "$here/root.ext4"

booted() { on g 'systemctl is-system-running --wait; systemctl list-units --failed --no-legend; cat /proc/1/comm; ibv_devices; df -h / | tail -n 1'; }
t booted "systemd is PID 1" booted
again() { on g 'echo kept >/root/mark' && guest_reboot g && on g 'cat /root/mark'; }
t reboot "the image outlives a reboot" again
