from colocate.kubelet import Allocation, DevicePlugin, run


class Fans(DevicePlugin):
    resource = "example.com/fan"

    async def devices(self):
        yield ["fan-0", "fan-1"]

    async def allocate(self, ids):
        return Allocation(envs={"FANS": ",".join(ids)})


if __name__ == "__main__":
    run(Fans())
