#!/usr/bin/env bash
# Replace or restart the members of a stack's ensemble, one after the other; the next only when all are in step.
#
#   scripts/roll_nodes.sh replace [NODE …]    new machines: today's image, instance type and bootstrap (pulumi up for each)
#   scripts/roll_nodes.sh restart [NODE …]    the same machines: what the last `pulumi up` changed of zoo.cfg and certificates
#
# Run it in the project's folder with the stack selected, where `sluice ensemble ready` reaches the members: from a
# machine in the writers' security group, with sluice.env of `sluice config from-stack --role operator` in the
# environment, which names the members in the stack's order. Without NODE: all, the leader last, so that there is one
# election and not three. It ends at the first thing that is wrong: what is whole stays whole.
set -euo pipefail

usage() {
  sed -n '4,5s/^# *//p' "$0" >&2
  exit 2
}

how=${1:-}
[[ $how == replace || $how == restart ]] || usage
shift
count=$(pulumi stack output zookeeper_members)
nodes=("$@")
if ((${#nodes[@]} == 0)); then
  mapfile -t nodes < <(sluice ensemble status --json | python3 -c '
import json, sys
leads = [server["mode"] == "leader" for server in json.load(sys.stdin)["servers"]]
print(*sorted(range(1, len(leads) + 1), key=lambda node: leads[node - 1]), sep="\n")')
  ((${#nodes[@]} == count)) || {
    echo "sluice ensemble status tells of ${#nodes[@]} members, the stack has $count: is SLUICE_ZK_HOSTS the stack's?" >&2
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
  # Whatever happens, a later up replaces nothing.
  trap 'pulumi config rm replaceNode' EXIT
  pulumi up --yes --skip-preview
  pulumi config rm replaceNode
  trap - EXIT
}

ready 60 || {
  echo "nothing was done: mend this first (sluice ensemble status)" >&2
  exit 1
}
for node in "${nodes[@]}"; do
  echo "== member $node: $how"
  "$how" "$node"
  ready 900
done
