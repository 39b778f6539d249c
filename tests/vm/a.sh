# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh; vm.sh says what the words mean.
# a.sh: one guest: RDMA on real verbs, the demo over it, bits as on this machine
must "a guest" guest_run g

devices() { on g ibv_devinfo -d rxe0 | tee /dev/stderr | grep -o 'PORT_ACTIVE'; }
t devices "a device that verbs know" devices
