# The body of a node's user data, which sets up a new machine once. node_config.py puts variables in front of it.
# sluice-configure fetches files that may change later (zoo.cfg, certificates) at each start of the service.
set -euo pipefail

ROOT=${SLUICE_ROOT:-}
OPT=$ROOT/opt
ETC=$ROOT/etc/zookeeper
STATE=$ROOT/var/lib/zookeeper

# device_of VOLUME: wait until the volume is attached, and print its device. AWS attaches it after the machine starts.
device_of() {
  local device=$ROOT/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${1/-/} tries
  for ((tries = 0; tries < 300; tries++)); do
    if [[ -e $device ]]; then
      printf '%s\n' "$device"
      return
    fi
    sleep 2
  done
  echo "volume $1 was not attached within ten minutes" >&2
  return 1
}

# mount_volume DEVICE FOLDER: format the volume only if it is blank, because a volume of an earlier machine has data.
# (mkfs.xfs refuses to overwrite a file system unless it gets -f, which it must never get.)
mount_volume() {
  local device=$1 folder=$2 status=0
  # blkid reports an unreadable device as a blank one.
  head --bytes=1 "$device" > /dev/null
  blkid -p "$device" > /dev/null || status=$?
  case $status in
    0) echo "$device has data and is not formatted" ;;
    2) mkfs.xfs -q "$device" ;;
    *)
      echo "$device cannot be read (blkid status $status): nothing is formatted" >&2
      return 1
      ;;
  esac
  mkdir -p "$folder"
  printf '%s %s xfs defaults,noatime,nofail,x-systemd.device-timeout=600 0 2\n' "$device" "$folder" >> "$ROOT/etc/fstab"
  mount "$folder"
}

# retry COMMAND...: run the command until it succeeds, at most ten times, with 15 s between the attempts.
retry() {
  local tries
  for ((tries = 1; ; tries++)); do
    "$@" && return
    if ((tries == 10)); then
      return 1
    fi
    sleep 15
  done
}

# fetch KEY ALGORITHM SUM FILE: download an object of the artifacts bucket, and verify its checksum.
fetch() {
  retry aws s3 cp --region "$SLUICE_REGION" --only-show-errors "s3://$SLUICE_ARTIFACTS/$1" "$4"
  printf '%s  %s\n' "$3" "$4" | "$2"sum --check --quiet -
}

mkdir -p "$OPT" "$ETC" "$STATE" "$ROOT/etc/systemd/system"
# The ids are fixed: the volumes survive this machine, and on the next machine the same ids must own the files.
if ! id zookeeper > /dev/null 2>&1; then
  groupadd --system --gid 2181 zookeeper
  useradd --system --uid 2181 --gid 2181 --home-dir /var/lib/zookeeper --shell /sbin/nologin zookeeper
fi
retry dnf install -y -q java-17-amazon-corretto-headless amazon-cloudwatch-agent tar gzip

mount_volume "$(device_of "$SLUICE_DATA_VOLUME")" "$STATE/data"
mount_volume "$(device_of "$SLUICE_LOG_VOLUME")" "$STATE/log"
chown zookeeper:zookeeper "$STATE/data" "$STATE/log"
printf '%s\n' "$SLUICE_NODE" > "$STATE/data/myid"
# A member without data does not vote (db.autocreate=false in zoo.cfg), because all members with data may be down. In a
# new ensemble it must vote. ZooKeeper lets it vote if log/initialize exists, and deletes that file.
if [[ ! -e $STATE/data/version-2 && ! -e $STATE/log/version-2 ]]; then
  initialized=$(retry aws ssm get-parameter --region "$SLUICE_REGION" --name "$SLUICE_INITIALIZED" \
    --query Parameter.Value --output text)
  if [[ $initialized == no ]]; then
    touch "$STATE/log/initialize"
  else
    echo "this member has no data, and the ensemble has data: this member waits for a leader (docs/runbooks.md)"
  fi
fi

fetch "$SLUICE_ARCHIVE" sha512 "$SLUICE_ARCHIVE_SHA512" "$OPT/zookeeper.tar.gz"
mkdir -p "$OPT/zookeeper"
tar --extract --gzip --file "$OPT/zookeeper.tar.gz" --directory "$OPT/zookeeper" --strip-components 1 --no-same-owner
rm "$OPT/zookeeper.tar.gz"

while read -r sum key; do
  name=${key##*/}
  case $name in
    *.service | *.timer) file=$ROOT/etc/systemd/system/$name ;;
    sluice-*) file=$OPT/sluice/$name ;;
    *) file=$ETC/$name ;;
  esac
  mkdir -p "${file%/*}"
  fetch "$key" sha256 "$sum" "$file"
  sed -i "s|@NODE@|$SLUICE_NODE|g; s|@STACK@|$SLUICE_STACK|g; s|@LOG_GROUP@|$SLUICE_LOG_GROUP|g" "$file"
  [[ $name != sluice-* || $name == *.* ]] || chmod 0755 "$file"
done <<< "$SLUICE_FILES"

for name in NODE REGION STACK PARAMETER INITIALIZED SECRET LOCK_ROOT LOCK_ROOT_ACL PARENT_ACL; do
  variable=SLUICE_$name
  printf '%s=%s\n' "$variable" "${!variable}"
done > "$ETC/node.env"

# The agent starts first, so that it sends the logs of the next steps.
amazon-cloudwatch-agent-ctl -a fetch-config -m ec2 -s -c "file:$ETC/cloudwatch-agent.json" ||
  echo "the CloudWatch agent did not start: this member serves without it" >&2
systemctl daemon-reload
systemctl enable zookeeper.service sluice-lock-root.service sluice-certificates.timer
# The units wait for the other members and retry without limit, so this script does not wait for the units.
systemctl start --no-block zookeeper.service sluice-lock-root.service sluice-certificates.timer
