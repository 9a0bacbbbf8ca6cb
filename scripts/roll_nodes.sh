#!/usr/bin/env bash
# Replace or restart the members of a stack's ensemble one by one. It continues only while all members are in sync.
#
#   scripts/roll_nodes.sh replace [NODE …]    new machines with the current image, instance type and bootstrap (pulumi up for each)
#   scripts/roll_nodes.sh restart [NODE …]    the same machines with the zoo.cfg and certificates of the last `pulumi up`
#
# Run it in the project's folder with the stack selected, on a machine from which `sluice ensemble ready` reaches the
# members. The environment needs sluice.env of `sluice config from-stack --role operator`, which names the members in the
# stack's order. Without NODE it rolls all members, the leader last, so that there is one election instead of several. It
# stops at the first failure and leaves the other members untouched.
set -euo pipefail

usage() {
  sed -n '4,5s/^# *//p' "$0" >&2
  exit 2
}

action=${1:-}
[[ $action == replace || $action == restart ]] || usage
shift
count=$(pulumi stack output zookeeper_members)
nodes=("$@")
if ((${#nodes[@]} == 0)); then
  mapfile -t nodes < <(sluice ensemble status --json | python3 -c '
import json, sys
is_leader = [server["mode"] == "leader" for server in json.load(sys.stdin)["servers"]]
print(*sorted(range(1, len(is_leader) + 1), key=lambda node: is_leader[node - 1]), sep="\n")')
  ((${#nodes[@]} == count)) || {
    echo "sluice ensemble status lists ${#nodes[@]} members, and the stack has $count: check SLUICE_ZK_HOSTS" >&2
    exit 1
  }
fi
for node in "${nodes[@]}"; do
  [[ $node =~ ^[1-9]$ && $node -le $count ]] || usage
done

ready() {
  sluice ensemble ready --expect "$count" --wait "$1"
}

restart() {
  local instance command
  instance=$(pulumi stack output zookeeper_instance_ids --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[int(sys.argv[1]) - 1])' "$1")
  command=$(aws ssm send-command --instance-ids "$instance" --document-name AWS-RunShellScript \
    --parameters 'commands=["systemctl restart zookeeper.service","systemctl restart --no-block sluice-lock-root.service"]' \
    --query Command.CommandId --output text)
  aws ssm wait command-executed --command-id "$command" --instance-id "$instance"
}

replace() {
  pulumi config set replaceNode "$1"
  # Remove the setting even after a failure, so that a later `pulumi up` replaces no machine.
  trap 'pulumi config rm replaceNode' EXIT
  pulumi up --yes --skip-preview
  pulumi config rm replaceNode
  trap - EXIT
}

ready 60 || {
  echo "the ensemble is not ready, so no member was rolled: repair it first (sluice ensemble status)" >&2
  exit 1
}
for node in "${nodes[@]}"; do
  echo "== member $node: $action"
  "$action" "$node"
  ready 900
done
