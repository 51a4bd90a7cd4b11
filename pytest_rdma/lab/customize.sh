#!/bin/sh
# Run inside the new root while the image is built: kernel modules, initramfs, users, and what is never read is removed.
set -eu
cd /lab
for package in /lab/linux-*.deb; do
    dpkg -x "$package" /lab/kernel
done
release=$(ls /lab/kernel/usr/lib/modules | head -n 1)
tree=/lab/kernel/usr/lib/modules/$release
mkdir -p "/usr/lib/modules/$release/kernel"
find /lab/kernel -name 'vmlinuz*' -type f -exec cp {} /lab/vmlinuz ';' -quit

# Only modules that a guest with two virtual NICs and Soft-RoCE can use: loading is quicker when they are uncompressed.
cd "$tree/kernel"
for kept in \
    arch/x86/crypto crypto lib net/core net/ipv4 net/ipv6 net/sched net/netfilter net/bridge net/8021q net/802 net/llc \
    net/packet net/key net/xfrm net/tls net/vmw_vsock net/9p net/openvswitch net/mptcp \
    fs/overlayfs fs/squashfs fs/configfs fs/fuse fs/9p fs/netfs fs/nls \
    drivers/infiniband/core drivers/infiniband/sw drivers/infiniband/ulp \
    drivers/net/bonding drivers/net/macvlan.ko* drivers/net/macvtap.ko* drivers/net/ipvlan drivers/net/vxlan \
    drivers/net/dummy.ko* drivers/net/ifb.ko* drivers/net/veth.ko* drivers/net/vrf.ko* drivers/net/tun.ko* \
    drivers/net/tap.ko* drivers/net/virtio_net.ko* drivers/net/net_failover.ko* drivers/net/netconsole.ko* \
    drivers/net/netdevsim drivers/block/virtio_blk.ko* drivers/block/loop.ko* drivers/virtio \
    drivers/char/hw_random/rng-core.ko* drivers/char/hw_random/virtio-rng.ko* drivers/char/virtio_console.ko* \
    drivers/vhost drivers/target/target_core_mod.ko* drivers/nvme block
do
    [ ! -e "$kept" ] || cp -a --parents "$kept" "/usr/lib/modules/$release/kernel/"
done
cp "$tree"/modules.order "$tree"/modules.builtin "$tree"/modules.builtin.modinfo "/usr/lib/modules/$release/"
find "/usr/lib/modules/$release/kernel" -name '*.ko.xz' -exec xz -d {} +
find "/usr/lib/modules/$release/kernel" -name '*.ko.zst' -exec zstd -q -d --rm {} + 2>/dev/null || true
depmod "$release"

# The initramfs: a static busybox, its /init, and the modules in the order in which they are to be loaded.
root=/lab/initramfs
mkdir -p $root/bin $root/dev $root/proc $root/lower $root/rw $root/root $root/m $root/lab
cp /usr/bin/busybox $root/bin/
ln -s busybox $root/bin/sh
cp /lab/initramfs-init $root/init
chmod 755 $root/init
modprobe --set-version "$release" --show-depends --all \
    virtio_mmio virtio_blk virtio_net squashfs overlay rdma_rxe rdma_ucm > /lab/needed
awk '$1 == "insmod" && !seen[$2]++ { print $2 }' /lab/needed > /lab/order
number=100
while read -r module; do
    number=$((number + 1))
    cp "$module" "$root/m/$number-$(basename "$module")"
done < /lab/order
(cd $root && find . | busybox cpio -o -H newc) > /lab/initramfs.cpio 2>/dev/null

mkdir /lab/bin
cp /usr/bin/busybox /lab/bin/
for applet in $(busybox --list); do
    [ "$applet" = busybox ] || ln -s busybox "/lab/bin/$applet"
done
install -m 755 /lab/add-second-device /usr/local/sbin/

getent group rdma > /dev/null || groupadd --system rdma
useradd --create-home --uid 1000 --gid rdma --shell /bin/bash rdma
# Without PAM sshd refuses an account whose password field says "locked".
usermod --password '*' rdma
usermod --password '*' root
rm -f /etc/ssh/ssh_host_*
cp /lab/sshd_config /etc/ssh/sshd_config
cp /lab/hosts /etc/hosts
chmod 755 /lab/guest-start
mkdir -m 700 /home/rdma/.ssh /root/.ssh 2> /dev/null || true
echo 'LANG=C.UTF-8' > /etc/default/locale
rm -rf /usr/lib/udev/hwdb* /usr/bin/*lto-dump* /var/lib/apt/lists /var/cache/apt /usr/lib/systemd/systemd-* /usr/share/bash-completion
